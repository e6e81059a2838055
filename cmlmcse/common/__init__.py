"""What every part of the tool uses: errors, files, figures."""
