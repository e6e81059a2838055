"""Run a study, arms × paired seeds: python run_study.py STUDY.yaml [--workers N] [--field value …]"""

from cmlmcse.study.command import main

if __name__ == "__main__":
    main()
