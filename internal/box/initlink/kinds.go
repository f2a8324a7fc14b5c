//go:build linux

package initlink

// Kind is the first byte of a message between keeper and init.
type Kind byte

// The messages. A message is one byte of kind, one byte with the number of descriptors that travel with it, two bytes
// of zero, four bytes of length (big endian), and JSON of that length. When either end of the stream closes, the box
// ends.
//
//	kind      from    payload    descriptors
//	Setup     keeper  plan.Guest the root, a detached mount tree (tier process), one tree
//	                             for each of Shared, with Self the directory of its socket,
//	                             with Tell a Tally; first, once
//	Ready     init    Ready      -; answers Setup
//	Spawn     keeper  Spawn      stdout, stderr, and stdin if it is not /dev/null;
//	                             none with a terminal
//	Spawned   init    Spawned    the terminal's master, when asked for; answers Spawn, in order
//	Exited    init    Exited     -; after the Spawned of the same pid
//	Refused   init    Refused    -; before the Exited of the command that made the calls
//	Kill      keeper  Kill       -; no answer; an unknown pid is ignored
//	Freeze    keeper  -          -; spawns wait from here to Thaw. With
//	                             Guest.Outside init only completes what it has begun
//	Frozen    init    Frozen     -; answers Freeze
//	Thaw      keeper  -          -
//	Thawed    init    -          -; answers Thaw
//	Map       keeper  -          -; between Frozen and Thaw
//	Mapped    init    Mapped     -; answers Map
//	Hold      keeper  -          -; between Frozen and Thaw, if init stopped the processes
//	Held      init    Held       -; answers Hold
//	Count     keeper  -          -
//	Counted   init    Counted    -; answers Count
//	Clock     keeper  -          -
//	Clocked   init    Clocked    -; answers Clock
//	Programs  init    Programs   -; at any time; all that is known when a command ends
//	                             comes before its Exited
//	Look      keeper  Look       -; any number at once
//	Resize    keeper  Resize     -; in tier gvisor, where the keeper's end of a terminal is
//	                             a socket
//	Self      init    -          a connection to SelfSocket, in tier gvisor
//	Adopt     init    Adopt      those named in Has; in tier gvisor, for each command that
//	                             runs on in a resumed box, before Ready
//	Rekey     keeper  Rekey      -; gives a resumed box its own identity
//	Rekeyed   init    Rekeyed    -; answers Rekey
//	Save      keeper  -          the three files of a memory image, in tier gvisor; between
//	                             Frozen and Thaw
//	Saved     init    Saved      -; answers Save
//	Unknown   init    Unknown    -; in place of the answer to a message of an unknown kind:
//	                             init in an image may be from an older build
//	Seen      init    Seen       a socket, if a LookDial succeeded;
//	                             answers the Look with its ID, in any order
const (
	MsgSetup    Kind = 'C'
	MsgReady    Kind = 'R'
	MsgSpawn    Kind = 'S'
	MsgSpawned  Kind = 's'
	MsgExited   Kind = 'e'
	MsgKill     Kind = 'K'
	MsgFreeze   Kind = 'F'
	MsgFrozen   Kind = 'f'
	MsgThaw     Kind = 'T'
	MsgThawed   Kind = 't'
	MsgMap      Kind = 'M'
	MsgMapped   Kind = 'm'
	MsgHold     Kind = 'H'
	MsgHeld     Kind = 'h'
	MsgCount    Kind = 'N'
	MsgCounted  Kind = 'n'
	MsgClock    Kind = 'A'
	MsgClocked  Kind = 'a'
	MsgPrograms Kind = 'P'
	MsgLook     Kind = 'L'
	MsgSeen     Kind = 'l'
	MsgRefused  Kind = 'd'
	MsgResize   Kind = 'Z'
	MsgSelf     Kind = 'O'
	MsgAdopt    Kind = 'D'
	MsgRekey    Kind = 'I'
	MsgRekeyed  Kind = 'i'
	MsgSave     Kind = 'V'
	MsgSaved    Kind = 'v'
	MsgUnknown  Kind = 'U'
)
