"""One recipe run by stock TRL's trainer and by this package's.

This face imports nothing; its modules are imported as they are needed.

plan         the two runs: folders, options, commands
script       what each process runs: the recipe's launch script, with either trainer
processes    start, watch and end them
live         how they stand, printed while they run and at the end
evaluations  that as numbers, lines, a table and a picture
"""
