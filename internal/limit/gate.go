package limit

// The bounds on what a gate holds of one sandbox: connections, datagrams, names and
// events. All of them are of one gate, unless they say otherwise.
const (
	// GateConns is how many TCP connections there may be, GateOpening how many of these
	// may not be established yet, and GateInspected how many may have their requests
	// inspected: each of those may hold hundreds of times as much memory as another.
	GateConns     = 512
	GateOpening   = 128
	GateInspected = 128
	// GateFlows is how many flows of datagrams there may be.
	GateFlows = 128
	// GateDials is how many connections and flows are dialled in a second; twice as many
	// in a burst: the host has few ports.
	GateDials = 200
	// GateIdleSeconds and GateDatagramIdleSeconds are the idle times of a connection, and of
	// a flow of datagrams.
	GateIdleSeconds         = 3600
	GateDatagramIdleSeconds = 60
	// GateDialSeconds is the time to dial a host, and GateHelloSeconds that for a ClientHello,
	// a handshake, or the head of a request that has begun.
	GateDialSeconds  = 15
	GateHelloSeconds = 15

	// GateAskSeconds is how long a destination waits for a decision. It ends before resolvers
	// give up or retry, at multiples of 30 s: a query repeated just as its question ends
	// would begin another question, whose answer would come too late.
	GateAskSeconds = 55
	// GateQuestions is how many destinations wait for a decision, and GateWaiting how many queries
	// and connections wait for them; less than GateOpening.
	GateQuestions = 16
	GateWaiting   = 64

	// FlowBuffer is what a connection buffers each way: the first FlowBuffers have what a
	// fast link needs, others FlowSmallBuffer.
	FlowBuffer      = 2 << 20
	FlowBuffers     = 16
	FlowSmallBuffer = 128 << 10
	// Datagram is the longest datagram.
	Datagram = 64 << 10
	// LinkWaiting is how many bytes are queued for the sandbox, with the stack's overhead.
	// LinkQueue is how many a socket of a link may queue, if the kernel allows it.
	LinkWaiting = 4 << 20
	LinkQueue   = 4 << 20

	// DNSQuery is the longest query: one name and an OPT. More would only serve
	// as a tunnel. DNSDatagram is the longest answer in a datagram, whatever the query says it
	// could take (DNS flag day 2020), and DNSAnswers how many addresses one has.
	DNSQuery    = 512
	DNSDatagram = 1232
	DNSAnswers  = 32
	// DNSQueries is how many queries are answered at a time, and DNSStream how many come
	// over one TCP connection.
	DNSQueries = 64
	DNSStream  = 100
	// DNSLookups is how many names are resolved in a second after the first DNSLookupBurst,
	// since names can carry data. Each takes at most DNSLookupSeconds.
	DNSLookups       = 20
	DNSLookupBurst   = 200
	DNSLookupSeconds = 10

	// Pins is how many pairs of a name and an address are remembered, PinAddrs how many
	// addresses of a name, and PinNames how many names of an address: the policy is asked
	// about each of those at each connection.
	Pins     = 16384
	PinAddrs = 64
	PinNames = 256

	// HelloBytes is the longest ClientHello. With post-quantum keys they have less than
	// 2 KiB; 16 leaves room for tickets. HelloWire is how much may come until it is whole:
	// a client may use a record for each few bytes, but not one for each byte of a long one.
	HelloBytes = 16 << 10
	HelloWire  = 4 * HelloBytes

	// JournalEvents is how many events wait to be reported, and JournalDenials how many
	// denials are counted at a time.
	JournalEvents  = 1024
	JournalDenials = 512
	// EventText is how many bytes an event has of a method, a path, or an invalid name, before
	// unprintable characters are escaped: the longest name as text, without its last
	// dot (RFC 1035, 3.1: 255 bytes on the wire).
	EventText = 253
)

// gate returns the bounds on what the gate reads, holds and relays.
func gate() area {
	const (
		here     = "internal/gate/"
		defaults = here + "bounds_linux_test.go "
		conns    = here + "tcp_linux_test.go TestTCP_BoundsConnectionsAndBytes" + lowered
		flows    = here + "life_linux_test.go TestDatagrams_PassByRuleOnly" + lowered
		asks     = here + "ask_test.go TestPendingRequests_AreBounded" + lowered
		pins     = here + "pins_test.go TestPins_AreBounded"
		hellos   = here + "hello_test.go TestHello_RefusesInvalid"
		journal  = here + "events_test.go TestJournal_IsBounded"
		names    = here + "names_test.go "
		denied   = "further ones are denied"
	)
	return area{title: "Network", bounds: append([]Bound{
		{"TCP connections", GateConns, "connections", denied, conns},
		{"TCP connections whose requests are inspected", GateInspected, "connections", denied,
			here + "inspect_linux_test.go TestInspection_BoundsConnections" + lowered},
		{"TCP connections that are being opened", GateOpening, "connections",
			"further ones are dropped; the sandbox's kernel tries again", defaults + "TestOpening_IsBounded" + lowered},
		{"flows of datagrams", GateFlows, "flows", denied, flows},
		{"connections and flows dialled in a second, and twice as many in a burst", GateDials, "dials", "further ones wait",
			defaults + "TestDials_AreRateLimited" + lowered},
		{"idle time of a connection", GateIdleSeconds, "seconds", "it is closed", conns},
		{"idle time of a flow of datagrams", GateDatagramIdleSeconds, "seconds", "it is closed", flows},
		{"time to dial a host", GateDialSeconds, "seconds", "the connection is refused",
			defaults + "TestDial_TimesOut" + lowered},
		{"time for a ClientHello, a handshake, or the head of a request", GateHelloSeconds, "seconds",
			"the connection is closed", here + "inspect/patience_test.go TestServe_TimesOut"},
		{"time for which a destination waits for a decision", GateAskSeconds, "seconds", "it is denied",
			here + "ask_linux_test.go TestPendingRequest_TimesOut"},
		{"destinations that wait for a decision", GateQuestions, "places", denied, asks},
		{"queries and connections that wait for a decision", GateWaiting, "entries", denied, asks},
		{"packets queued for the sandbox", LinkWaiting, "bytes", "further ones are dropped",
			here + "pipe_linux_test.go TestPipe_DropsForSlowReader"},
		{"bytes queued in a socket of a link", LinkQueue, "bytes", "further packets are dropped",
			here + "link/pair_linux_test.go TestPair_QueuesUpToLimit"},
		{"a DNS query", DNSQuery, "bytes", "it is refused (FORMERR); over TCP, the connection is closed",
			here + "dns_test.go TestParseQuery_RefusesInvalid"},
		{"a DNS answer in a datagram", DNSDatagram, "bytes", "the answer has `TC` set, and the client asks again over TCP",
			names + "TestAnswer_BoundsAddresses"},
		{"addresses in a DNS answer", DNSAnswers, "addresses", "further ones are left out",
			names + "TestAnswer_BoundsAddresses"},
		{"DNS queries answered at a time", DNSQueries, "queries", "further ones are dropped; over TCP, denied",
			names + "TestQueries_AreBoundedAtOnce"},
		{"DNS queries over one TCP connection", DNSStream, "queries", "the connection is closed",
			defaults + "TestDNS_OverTCPIsBounded"},
		{"names resolved in a burst, and then 20 in a second", DNSLookupBurst, "names", "further ones are denied",
			here + "resolve_linux_test.go TestLookups_AreRateLimited"},
		{"time to resolve a name", DNSLookupSeconds, "seconds", "the answer is SERVFAIL",
			names + "TestLookup_TimesOut"},
		{"remembered pairs of a name and an address", Pins, "pairs", "the name is not answered", pins},
		{"remembered addresses of a name", PinAddrs, "addresses", "the oldest are forgotten", pins},
		{"remembered names of an address", PinNames, "names", "the name is not answered", pins},
		{"a ClientHello", HelloBytes, "bytes", "the connection is denied", hellos},
		{"records of a ClientHello", HelloWire, "bytes", "the connection is denied", hellos},
		{"events queued to be reported", JournalEvents, "events", "accesses that cannot be reported are denied", journal},
		{"distinct denials that are counted at a time", JournalDenials, "denials",
			"further ones are counted together", journal},
		{"a method, a path or a name in an event", EventText, "bytes", "it is truncated",
			names + "TestPrintable_TruncatesLongText"},
	}, inspection()...)}
}
