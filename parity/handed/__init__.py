"""Two modules that should be one model: of what is the other made, and does it give the same?"""
