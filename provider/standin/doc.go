// Package standin is a payment provider to test against. It plays the
// reference provider's HTTP contract in full, misbehaves exactly as told, and
// keeps a record, taken at the socket, of everything that reached it.
//
// In a test:
//
//	s, err := standin.New(standin.Options{})
//	err = s.Start("127.0.0.1:0")
//	defer s.Close()
//	c := standin.NewClient(s.URL())
//	err = c.SetPlan(ctx, standin.Rule{
//		Match: standin.Match{Method: "POST", Reference: "r-1"},
//		Fault: standin.Fault{Kind: standin.AcceptThenDrop},
//		Times: 1,
//	})
//
// # The provider
//
// POST /v1/refunds, GET /v1/refunds?reference=, GET /v1/refunds/{id}. A
// request needs a bearer token (any, unless Options.APIKey is set). Every
// payment exists and has enough left, unless it was described under
// /control/payments: then its currency and remaining amount are enforced.
//
// A key belongs to the first body it came with; other bytes get 409
// idempotency_mismatch. While the first request with the key still waits for
// its answer, another gets 409 in_progress. Afterwards the first answer is
// replayed, rejects and a 500 after accepting included, until the key's
// lifetime is over. Busy, rate-limited and refused requests bind no key.
//
// With Options.StateFile refunds, keys, payments and open settlements survive
// the process, also kill -9: a refund is in the file before its answer leaves.
// The plan, the record and the webhook settings do not survive.
//
// # Fault plan
//
// PUT /control/plan replaces the plan and starts its counters and its clock;
// GET returns it with the hits of each rule; DELETE removes it. For each
// request the first rule that matches and isn't used up applies.
//
//	{"rules": [{
//	  "match": {
//	    "method": "POST",                     // GET, POST or absent for both
//	    "reference": "r-1",                   // exact, or a prefix such as "r-*"
//	    "from_request": 2, "to_request": 5,   // number since the plan was set, from 1
//	    "from_ms": 0, "to_ms": 60000          // since the plan was set; to_ms excluded
//	  },
//	  "times": 1,                             // uses of the rule; absent: no limit
//	  "per_reference": true,                  // times counts for each reference alone
//	  "fault": {"kind": "accept_then_drop", "delay_ms": 3000}
//	}]}
//
// Every fault takes delay_ms, counted from the arrival: an accepted refund is
// executed at once, only the answer waits. The kinds and what else they take
// ("*" is required):
//
//	delay               delay_ms*: the normal answer, later
//	accept_then_drop    executes, then closes without an answer
//	accept_then_reset   executes, sends half of the answer, then resets (RST)
//	error_after_accept  executes; the first answer is a 500, stored and replayed
//	pending             executes; 201 and pending. status (201 or 202), empty_body
//	                    (202 only), settle_ms and settle_to (succeeded, failed):
//	                    pending for good without settle_ms
//	drop                resets (RST) without executing
//	reject              code*: 422 and the code, stored and replayed
//	busy                503 temporarily_unavailable. retry_after
//	rate_limit          429 rate_limited. retry_after
//	deny                status* 401 or 403
//	hang                no answer until the client gives up. execute
//	garbage             200 and a body that is no JSON. execute, body
//	partial             half of a body whose length was promised. execute
//	redirect            status (302, 303, 307, 308; default 307), location
//	                    (default: here). execute
//	answer              status*, content_type, body, retry_after. execute
//
// execute says that the request is executed before the misbehaviour; without
// it the provider forgets the request. pending, reject and error_after_accept
// apply to POST only. A plan that makes no sense is refused with 400 and a
// sentence that names the rule.
//
// # Record
//
// GET /control/record returns {"requests": [Request...]} in order of arrival;
// ?wait_for=N answers once N requests have arrived (at most 30 s). DELETE
// empties it. Control requests are not in it.
//
// # The rest of /control
//
//	GET    /control/refunds               {"refunds": [Refund...], "executions": {"r-1": 1}}
//	POST   /control/refunds               Refund: one made at the dashboard
//	PUT    /control/refunds/{id}/status   {"status": "failed", "code": "card_closed"}
//	PUT    /control/payments/{id}         {"amount": 5000, "currency": "TWD"}
//	PUT    /control/webhooks              Webhooks
//	GET    /control/webhooks              {"settings": Webhooks, "deliveries": [Delivery...]}
//	POST   /control/webhooks/{event}/redeliver
//	GET    /control/settlement.csv        the settlement report
//
// A notification leaves when the refund changes, which is before the answer of
// a request that a fault delays. A status set later (a success that fails after
// all) is told in the same way and changes the settlement report.
//
// Errors of /control are {"error": "sentence"}.
package standin
