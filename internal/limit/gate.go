package limit

// The bounds on what a gate holds of one sandbox: connections, datagrams, names and
// events. All of them are of one gate, unless they say otherwise.
const (
	// GateConns is how many TCP connections there may be, GateOpening how many of these
	// that are not yet established, and GateInspected how many whose requests are looked
	// at: each of those may hold hundreds of times as much memory as another.
	GateConns     = 512
	GateOpening   = 128
	GateInspected = 128
	// GateFlows is how many flows of datagrams there may be.
	GateFlows = 128
	// GateDials is how many connections and flows are dialled in a second, and twice as
	// many at once: the ports of the host are few.
	GateDials = 200
	// GateIdleSeconds and GateDatagramIdleSeconds are how long nothing may move on a
	// connection, and on a flow of datagrams.
	GateIdleSeconds         = 3600
	GateDatagramIdleSeconds = 60
	// GateDialSeconds is the patience with the outside, and GateHelloSeconds that with a
	// ClientHello, a handshake, or the head of a request that has begun.
	GateDialSeconds  = 15
	GateHelloSeconds = 15

	// GateAskSeconds is how long a place waits for a person. It ends before resolvers give
	// up or ask again, at multiples of 30 s: a query that comes again as its question ends
	// would begin another, and its answer come too late.
	GateAskSeconds = 55
	// GateQuestions is how many places wait for a person, and GateWaiting how many queries
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
	// LinkWaiting is how much may wait, with what the stack notes of it, until the sandbox
	// takes it up. LinkQueue is what a socket of a link may queue, where the kernel lets it.
	LinkWaiting = 4 << 20
	LinkQueue   = 4 << 20

	// DNSQuery is the longest query: one name and an OPT. Nobody needs more, and more is a
	// tunnel. DNSDatagram is the longest answer in a datagram, whatever the query says it
	// could take (DNS flag day 2020), and DNSAnswers how many addresses one has.
	DNSQuery    = 512
	DNSDatagram = 1232
	DNSAnswers  = 32
	// DNSQueries is how many queries are answered at a time, and DNSStream how many come
	// over one TCP connection.
	DNSQueries = 64
	DNSStream  = 100
	// DNSLookups is how many names are asked outside in a second, since names can carry
	// data, after the first DNSLookupBurst; each for DNSLookupSeconds.
	DNSLookups       = 20
	DNSLookupBurst   = 200
	DNSLookupSeconds = 10

	// Pins is how many pairs of a name and an address are remembered, PinAddrs how many
	// addresses of a name, and PinNames how many names of an address: each of those is
	// asked of the policy at each connection.
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
	// EventText is how much an event has of a method, a path, or a name that is none, in
	// bytes before what cannot be printed is escaped: the longest name in text, without
	// its last dot (RFC 1035, 3.1: 255 bytes on the wire).
	EventText = 253
)

// gate are the bounds on what the gate reads, holds and relays.
func gate() area {
	const (
		here     = "internal/gate/"
		defaults = here + "bounds_linux_test.go "
		conns    = here + "tcp_linux_test.go TestBoundsHold" + lowered
		flows    = here + "life_linux_test.go TestDatagramsPassByRuleOnly" + lowered
		asks     = here + "ask_test.go TestQuestionsAreBounded" + lowered
		pins     = here + "pins_test.go TestPinsAreBounded"
		hellos   = here + "hello_test.go TestHellosThatAreRefused"
		journal  = here + "events_test.go TestTheJournalIsBounded"
		names    = here + "names_test.go "
		denied   = "further ones are denied"
	)
	return area{title: "Network", bounds: append([]Bound{
		{"TCP connections at a time", GateConns, "connections", denied, conns},
		{"TCP connections whose requests are inspected", GateInspected, "connections", denied, here + "inspect_linux_test.go TestInspectedConnectionsAreBounded" + lowered},
		{"TCP connections that are being opened", GateOpening, "connections", "further ones are dropped; the sandbox's kernel tries again", defaults + "TestOpening_IsBounded" + lowered},
		{"flows of datagrams at a time", GateFlows, "flows", denied, flows},
		{"connections and flows that are dialled in a second, and twice as many at once", GateDials, "dials", "further ones wait", defaults + "TestDials_WaitForTheirTurn" + lowered},
		{"time in which nothing moves on a connection", GateIdleSeconds, "seconds", "it is cut", conns},
		{"time in which nothing moves on a flow of datagrams", GateDatagramIdleSeconds, "seconds", "it is cut", flows},
		{"time to dial the outside", GateDialSeconds, "seconds", "the connection is refused", defaults + "TestDial_EndsWithItsPatience" + lowered},
		{"time for a ClientHello, a handshake, or the head of a request", GateHelloSeconds, "seconds", "the connection is ended", here + "inspect/patience_test.go TestServe_EndsWithItsPatience"},
		{"time that a place waits for a person", GateAskSeconds, "seconds", "it is denied", here + "ask_linux_test.go TestPatienceEnds"},
		{"places that wait for a person", GateQuestions, "places", denied, asks},
		{"queries and connections that wait for a person", GateWaiting, "entries", denied, asks},
		{"packets that wait for the sandbox to take them up", LinkWaiting, "bytes", "further ones are lost, as on any link", here + "pipe_linux_test.go TestWhoDoesNotReadIsNotWaitedFor"},
		{"what a socket of a link queues", LinkQueue, "bytes", "further packets are lost", here + "link/pair_linux_test.go TestAPairQueues"},
		{"a query of DNS", DNSQuery, "bytes", "it is refused (FORMERR); over TCP, the connection is ended", here + "dns_test.go TestWhatIsNoQueryIsRefused"},
		{"an answer of DNS in a datagram", DNSDatagram, "bytes", "the answer says `TC`; the query is to come by TCP", names + "TestAnswer_OfManyAddressesIsBounded"},
		{"addresses in an answer of DNS", DNSAnswers, "addresses", "further ones are left out", names + "TestAnswer_OfManyAddressesIsBounded"},
		{"queries of DNS that are answered at a time", DNSQueries, "queries", "further ones are dropped; over TCP, denied", names + "TestQueries_AreAnsweredSoManyAtATime"},
		{"queries of DNS over one TCP connection", DNSStream, "queries", "the connection is ended", defaults + "TestDNS_OverTCPIsBounded"},
		{"names that are asked outside at once, and then 20 in a second", DNSLookupBurst, "names", "further ones are denied", here + "resolve_linux_test.go TestLookupsAreLimited"},
		{"time to resolve a name", DNSLookupSeconds, "seconds", "the answer is SERVFAIL", names + "TestLookup_EndsWithItsPatience"},
		{"pairs of a name and an address that are remembered", Pins, "pairs", "the name is not answered", pins},
		{"addresses of a name that are remembered", PinAddrs, "addresses", "the oldest are forgotten", pins},
		{"names of an address that are remembered", PinNames, "names", "the name is not answered", pins},
		{"a ClientHello", HelloBytes, "bytes", "the connection is denied", hellos},
		{"records until a ClientHello is whole", HelloWire, "bytes", "the connection is denied", hellos},
		{"events that wait to be reported", JournalEvents, "events", "what they are about is denied", journal},
		{"denials that are counted at a time", JournalDenials, "denials", "further ones count as one", journal},
		{"a method, a path or a name in an event", EventText, "bytes", "it is cut", names + "TestPrintable_CutsLongText"},
	}, inspection()...)}
}
