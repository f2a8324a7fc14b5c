package policy

import "path"

// Within returns p with ~ expanded to each of homes. A relative path stays relative.
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
