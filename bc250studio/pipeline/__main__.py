"""``python -m bc250studio.pipeline JOBDIR [--stages a,b]``: the supervisor process of one job."""

import argparse
import sys
from pathlib import Path

from bc250studio.jobs import JobFolder
from bc250studio.pipeline import STAGES
from bc250studio.pipeline.supervisor import supervise

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="bc250studio.pipeline")
    parser.add_argument("job", type=Path)
    parser.add_argument("--stages", default=",".join(STAGES))
    options = parser.parse_args()
    sys.exit(supervise(JobFolder(options.job), options.stages.split(",")))
