"""What the files of the algorithms share: losses (the loss_*.py files), reward, advantages, credit and plugins.

reward.py: which reward training uses. advantages.py: its baseline and scale. credit.py: which token gets which part.
loss_base.py: the frame of the losses. loss_terms.py: their arithmetic. loss_call.py: how the trainer calls one.
objective.py: all of it together, from groups of episodes to samples.
"""
