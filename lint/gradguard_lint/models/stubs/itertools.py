"""itertools, as far as it calls functions of the program."""


def starmap(function, iterable):
    for args in iterable:
        yield function(*args)
