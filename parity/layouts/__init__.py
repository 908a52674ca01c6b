"""A training that is saved on some ranks, and goes on on others: is it the training of one process?"""
