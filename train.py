"""Train a sentence encoder: python train.py is cmlmcse train. Also: accelerate launch train.py RECIPE …"""

from cmlmcse.training.command import main

if __name__ == "__main__":
    main()
