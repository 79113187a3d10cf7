"""The main job: real data through Spark into a replicated store that is queried meanwhile.

``sources`` finds real rows on this machine, ``data`` turns them into the files of a stream,
``spark_job`` is the process that runs Spark. Uses the public API of every other room; nothing
imports this package but the command line.
"""
