"""The command line of raftstore, installed as ``raftstore.cli``.

Owns: parsing of arguments, formatting of answers, exit codes. Decides nothing: every command is a
thin call of the client, the runtime or the simulator. Nothing else imports this room.
"""
