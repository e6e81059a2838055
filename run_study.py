"""Run a study, arms × paired seeds: python run_study.py STUDY.yaml [--workers N] [--field value …]"""

from modeling_cmlmcse.study.__main__ import main

if __name__ == "__main__":
    main()
