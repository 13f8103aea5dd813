"""The ordered SQL of Shortlist, as package data.

``00`` holds what the version record itself needs, ``01`` to ``09`` tables (never changed once
applied), ``10`` to ``98`` functions and views (created anew when their text changes), ``99``
the checks, which are run and not applied.
"""
