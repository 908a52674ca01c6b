"""A run that is split over machines: which tests are whose, and one run file of the run files of all."""
