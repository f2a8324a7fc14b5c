package grant

import (
	"fmt"
	"testing"
)

// BenchmarkDecide decides about a usual request of a sandbox with 24 grants.
func BenchmarkDecide(b *testing.B) {
	var all []Issued
	for i := range 24 {
		name := fmt.Sprintf("g%d", i)
		all = append(all, Issued{Grant: given(b, name, `{"preset": "github"}`), Placeholder: placeholderOf(b, GitHub, name)})
	}
	s := set(b, all...)
	u := use(b, "GET", "https://api.github.com/repos/acme/web/pulls?state=open&page=2").with("Accept: application/json",
		"User-Agent: gh/2", "Accept-Encoding: gzip", "Authorization: Bearer "+all[23].Placeholder)
	b.ReportAllocs()
	for b.Loop() {
		if r := s.Decide(u, nil, now); len(r.Put) != 1 {
			b.Fatalf("%+v", r)
		}
	}
}
