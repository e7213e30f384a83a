"""Reports: the tables and plots of a run or a race, made from events alone."""
