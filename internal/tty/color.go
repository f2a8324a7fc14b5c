package tty

// Palette colours text, or leaves it as it is. The zero value leaves it.
type Palette struct{ On bool }

func (p Palette) sgr(code, s string) string {
	if !p.On || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// Bold makes s bold.
func (p Palette) Bold(s string) string { return p.sgr("1", s) }

// Dim makes s faint.
func (p Palette) Dim(s string) string { return p.sgr("2", s) }

// Red colours s.
func (p Palette) Red(s string) string { return p.sgr("31", s) }

// Green colours s.
func (p Palette) Green(s string) string { return p.sgr("32", s) }

// Yellow colours s.
func (p Palette) Yellow(s string) string { return p.sgr("33", s) }

// Cyan colours s.
func (p Palette) Cyan(s string) string { return p.sgr("36", s) }
