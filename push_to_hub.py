"""Export, verify and publish a checkpoint: python push_to_hub.py is cmlmcse push, under a familiar name."""

from cmlmcse.hub.push import main

if __name__ == "__main__":
    main()
