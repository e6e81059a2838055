"""The names of what adapt writes to its folder."""

EXPORT, RESULTS = "export", "results.json"  # what is handed back, and what was found
REPORT = "report"  # its two pages, without their suffixes
ARMS, SECOND_SPLIT = "arms", "second-split"  # folders of runs
PLAN, REQUEST, SECONDS = "plan.json", "request.json", "seconds.json"  # with which a later call goes on

# A folder with one of these is in use: only a call that goes on may write to it.
OWN = (EXPORT, f"{REPORT}.md", f"{REPORT}.html", RESULTS, ARMS, SECOND_SPLIT, PLAN, REQUEST, SECONDS)
