"""A race: one recipe run by stock TRL's trainer and by this package's trainer.

This package imports nothing; its modules are imported when needed.

plan         the two runs: folders, options, commands
script       the script of each process: the recipe's launch script, with either trainer
processes    starts, watches and ends the processes
live         prints the standings while the runs go on, and the result at the end
evaluations  the standings as numbers, lines, a table and a picture
"""
