"""Bytes to messages and back, and nothing else: no socket, no clock, no thread.

``framing`` cuts a byte stream into checked bodies; ``codec`` turns bodies into messages of
``raftstore.messages`` and ``raftstore.requests``. Whatever arrives, the only exceptions that leave
this room are DecodeError and UnsupportedVersionError; the connection that brought such bytes is
dropped by ``raftstore.transport`` and nothing else is affected (S12).
"""
