"""What is raised for anything that a person handed in and that cannot be used."""


class InputError(ValueError):
    """Data, a formula, a setting or a file cannot be used; the message says where and the remedy.

    The common base of all such complaints, so that one ``except nghvi.InputError`` catches them.
    """
