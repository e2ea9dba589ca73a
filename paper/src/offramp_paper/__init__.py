"""The paper behind offramp: its experiments, its theorems, and the methods it is compared with."""
