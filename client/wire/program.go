package wire

import "time"

// Program is one program that was started in a sandbox. All of it is a hint, as the
// sandbox wrote it: whoever starts a program chooses its arguments, and a program
// without a C library need not be seen at all.
type Program struct {
	PID int `json:"pid"`
	// Parent is the nearest of those above it that were started since the last
	// freeze as well; PID itself, when it took the place of one; 0: there is none.
	Parent int `json:"parent,omitempty"`
	// Args are the first of its arguments; "..." stands for what is left out.
	Args    []string  `json:"args"`
	Dir     string    `json:"dir,omitempty"` // the working directory, of those without a Parent
	Started time.Time `json:"started"`
	// Unlisted is how many more were started about then, for which there was no
	// room in the list.
	Unlisted int `json:"unlisted,omitempty"`
}
