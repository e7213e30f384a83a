"""Races: several ways to train one task to one target, over the same seeds.

`entries` declares a race, `course` runs it, `outcome` reads what came of it, `verdict` says it.
"""
