package limit

// gate are the bounds on what the gate reads and relays.
func gate() area {
	return area{title: "Network", bounds: []Bound{}}
}

const (
	Informational      = 16
	InformationalBytes = 64 << 10
	TrailerBytes       = 8 << 10
	HeadBytes          = 64 << 10
)
