"""Studies: arms × paired seeds of training runs, and what they say together (docs/studies.md).

`plan` reads a study, `work` does its runs, `statistics` compares them, `report` and `plot` write them down.
"""
