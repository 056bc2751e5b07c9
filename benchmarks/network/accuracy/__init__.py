"""Time to accuracy over a slow link: local and post-local SGD against DDP, on equal samples.

setting     what is trained, and how long
arms        who trains
trainee     a process of the crew: a model, its optimizer and its samples
laps        steps of several arms in turns, on the clock
rate        the link at which DDP has a given share of its speed
store       what is finished, as JSON lines
course      the order of it all, which goes on where it was interrupted
outcome     times, accuracies and their differences, paired over seeds
findings    the tables and the claims
picture     accuracy against seconds
"""
