"""The data plane: the only process that talks to the internet for bottles. Imports no Django.

The six objects of a request, in order:

1. `net.connection.Connection`: the bytes of one connection, both ways, with back-pressure and a deadline.
2. `request.client_session.ClientSession`: serves one client connection, a request at a time, and knows whose
   it is. A CONNECT goes to `request.connect_handler`; what comes out of its TLS has a session of its own.
3. `http.heads.RequestHead` and `http.targets.Target`: what was asked, strictly parsed.
4. `egress.policy.decide.Verdict`: whether it may leave, and by which route (`request.admission` asks).
5. `request.origin.Origin`: where it goes: checked addresses, credentials, the search for secrets.
6. `request.exchange.Exchange`: relays the request and its answer, and fills in a `state.records.Record`.

The folders in their order of import, each importing only those before it: `net`, `tls`, `http`,
`credentials`, `state`, `request`, `fast`, `process`. `config` and `errors` import none; `main` starts it all.
"""
