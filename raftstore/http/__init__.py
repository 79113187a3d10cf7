"""The HTTP interface of a node: a client of the cluster that speaks HTTP.

* ``server``       a thread with its own event loop; uvicorn
* ``connection``   uvicorn's protocol with bounds: how many connections, how long, how large a head
* ``app``          one request from socket to answer: role, limit, parameters, deadline, errors
* ``routes``       the one table of everything that is served; OpenAPI and docs/http-api.md too
* ``openapi``      the table as an OpenAPI document
* ``gateway``      what handlers may use: the client, the own node, facts for /livez
* ``row_routes``, ``table_routes``, ``cluster_routes``  the handlers
* ``ready``, ``metrics``  /readyz and /healthz; /metrics and /v1/events
* ``queries``      parameters and bodies of reads; the one statement of POST /query
* ``json_shapes``  answers; ``status_shape`` /clusterStatus in the shape of the article
* ``auth``, ``roles``  users, what they may do, the token of nodes
* ``errors``       errors <-> status codes and bodies

Decides nothing about the protocol and never touches the engine: it is a client, also of its own
node, so forwarding, failing over and deadlines are the client's.
"""
