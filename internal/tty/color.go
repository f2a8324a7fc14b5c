package tty

// Palette colours text if On is set. The zero value leaves text as it is.
type Palette struct{ On bool }

func (p Palette) sgr(code, s string) string {
	if !p.On || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// Bold returns s in bold.
func (p Palette) Bold(s string) string { return p.sgr("1", s) }

// Dim returns s in faint.
func (p Palette) Dim(s string) string { return p.sgr("2", s) }

// Red returns s in red.
func (p Palette) Red(s string) string { return p.sgr("31", s) }

// Green returns s in green.
func (p Palette) Green(s string) string { return p.sgr("32", s) }

// Yellow returns s in yellow.
func (p Palette) Yellow(s string) string { return p.sgr("33", s) }

// Cyan returns s in cyan.
func (p Palette) Cyan(s string) string { return p.sgr("36", s) }
