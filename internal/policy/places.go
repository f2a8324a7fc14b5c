package policy

import "path"

// Within gives p with each of homes in the place of ~. One that is relative stays so.
func (p Path) Within(homes ...string) []string {
	if p.in("/") == p {
		return []string{p.text}
	}
	var out []string
	for _, home := range homes {
		out = append(out, path.Clean("/"+p.in(home).text))
	}
	return out
}
