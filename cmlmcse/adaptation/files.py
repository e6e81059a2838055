"""The names of what adapt writes to its folder."""

from cmlmcse.common.run_files import ARMS, EXPORT, REQUEST, RESULTS

REPORT = "report"  # its two pages, without their suffixes
SECOND_SPLIT = "second-split"  # the folder of the runs on another split of the text
PLAN, SECONDS = "plan.json", "seconds.json"  # with which a later call goes on, beside REQUEST

# A folder with one of these is in use: only a call that goes on may write to it.
OWN = (EXPORT, f"{REPORT}.md", f"{REPORT}.html", RESULTS, ARMS, SECOND_SPLIT, PLAN, REQUEST, SECONDS)
