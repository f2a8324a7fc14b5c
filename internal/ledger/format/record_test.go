package format

import (
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// draw sets a value to anything that its type accepts.
func draw(t *rapid.T, v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(string(rapid.SliceOfN(rapid.Byte(), 0, 12).Draw(t, "text")))
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, "bool"))
	case reflect.Int, reflect.Int64:
		v.SetInt(rapid.Int64Range(-1<<52, 1<<52).Draw(t, "number"))
	case reflect.Slice:
		n := rapid.IntRange(0, 3).Draw(t, "length")
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			draw(t, v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			draw(t, v.Field(i))
		}
	}
}

// TestRecord_RoundTrips checks that a written record can be read, whatever its texts are, and that a record that
// could not be read is refused.
func TestRecord_RoundTrips(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		body := newBody(rapid.SampledFrom(Kinds()).Draw(t, "kind"))
		draw(t, reflect.ValueOf(body).Elem())
		r := &Record{Body: body, Observer: rapid.SampledFrom([]Observer{ByDaemon, ByGate, "nobody"}).Draw(t, "observer"),
			Sandbox: rapid.SampledFrom([]Sandbox{Host, "00000000000a", "../x"}).Draw(t, "sandbox"),
			Seq:     rapid.Int64Range(0, 3).Draw(t, "seq"), Leaf: rapid.Int64Range(-1, 3).Draw(t, "leaf"),
			Time: time.Date(rapid.IntRange(-1, 10001).Draw(t, "year"), 1, 2, 3, 4, 5, 6, time.UTC)}
		draw(t, reflect.ValueOf(&r.Name).Elem())
		line, err := Encode(r)
		plain, perr := encode(r)
		if perr != nil {
			t.Fatal(perr)
		}
		_, unread := Parse(plain)
		if (err == nil) != (unread == nil) {
			t.Fatalf("written: %v; read: %v: %s", err, unread, line)
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	r := &Record{Body: &Fork{Child: "00000000000b", Snapshot: "0123456789abc"}, Observer: ByDaemon,
		Sandbox: "00000000000a", Name: "box", Seq: 1, Tier: "process", Time: time.Unix(1e9, 1)}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Encode(r); err != nil {
			b.Fatal(err)
		}
	}
}
