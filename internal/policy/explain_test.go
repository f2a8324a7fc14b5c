package policy

import (
	"bytes"
	"fmt"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

func TestExplain(t *testing.T) {
	t.Parallel()
	p, err := Merge(
		layer(t, User,
			"tier: supervised\nfiles:\n  hide: [~/private]\n  decoys: true\nnetwork:\n  deny: [tracker.example]\nlimits: "+
				"{memory: 2GiB, time: 30m}\n"),
		layer(t, Project,
			"files: {readonly: [./vendor], writable: [., /tmp], mounts: [{from: ./data, to: /mnt}]}\nnetwork:\n  presets: "+
				"[npm]\n  allow:\n    - {host: api.example, methods: [GET]}\nenv: {A: \"x\\ny\"}\nlimits: {cpus: 1.5}\n"),
	)
	if err != nil {
		t.Fatal(told(err))
	}
	var b bytes.Buffer
	for _, l := range Explain(p) {
		fmt.Fprintf(&b, "%-15s %s  (%s)\n", l.Key, l.Value, l.From)
	}
	golden(t, "explain.txt", b.Bytes())
}

func TestDiff_ClassifiesWiderAndTighter(t *testing.T) {
	t.Parallel()
	a, err := Merge(
		layer(t, User,
			"tier: supervised\nstrong: true\nfiles: {hide: [~/a], readonly: [/x], writable: [/w]}\nnetwork: {allow: "+
				"[a.example], deny: [c.example]}\nlimits: {memory: 2GiB, pids: 5, disk: 1GiB}\nenv: {A: x}"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Merge(
		layer(t, User,
			"tier: gvisor\nfiles: {readonly: [/x, /y], mounts: [{from: ~/m, to: /m}], show: [~/.ssh]}\nnetwork: {allow: "+
				"[b.example], ask: true}\nlimits: {memory: 4GiB, pids: 3, cpus: 1}\nenv: {A: y}"))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for _, c := range Diff(a, b) {
		fmt.Fprintf(&out, "%+v\n", c)
	}
	golden(t, "diff.txt", out.Bytes())
}

// TestDiff_IsAntisymmetric checks that a change that is wider in one direction is tighter in the other, and that a
// policy does not differ from itself.
func TestDiff_IsAntisymmetric(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, aerr := Merge(layersOf(t, 2)...)
		b, berr := Merge(layersOf(t, 2)...)
		if aerr != nil || berr != nil {
			return
		}
		if d := Diff(a, a); len(d) > 0 {
			t.Fatalf("%+v", d)
		}
		count := func(list []Change) map[Way]int {
			n := map[Way]int{}
			for _, c := range list {
				n[c.Way]++
			}
			return n
		}
		there, back := count(Diff(a, b)), count(Diff(b, a))
		there[Wider], there[Tighter] = there[Tighter], there[Wider]
		for _, w := range []Way{Wider, Tighter, Other} {
			if there[w] != back[w] {
				t.Fatalf("%+v, but in reverse %+v", Diff(a, b), Diff(b, a))
			}
		}
		if same := canonical(t, a) == canonical(t, b); same != (len(Diff(a, b)) == 0) {
			t.Fatalf("%s and %s: %+v", canonical(t, a), canonical(t, b), Diff(a, b))
		}
		if !reflect.DeepEqual(Explain(a), Explain(a)) {
			t.Fatal("Explain is not deterministic")
		}
	})
}
