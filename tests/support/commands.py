"""The modules of the commands, by the names that tests give them."""

MODULES = {
    "train": "train",
    "adapt": "cmlmcse.adaptation.command",
    "evaluation": "cmlmcse.evaluation.command",
    "encode": "cmlmcse.encode.command",
    "push": "cmlmcse.hub.push",
    "study": "cmlmcse.study.command",
}
