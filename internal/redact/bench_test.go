package redact

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
)

// fifty returns secrets as a host has them.
func fifty() (all []Secret) {
	rnd := rand.New(rand.NewPCG(1, 2))
	const of = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=_-"
	for i := range 50 {
		b := make([]byte, 16+i%48)
		for j := range b {
			b[j] = of[rnd.IntN(len(of))]
		}
		all = append(all, Secret{fmt.Sprintf("SECRET_%d", i), string(b)})
	}
	return all
}

// build returns output like that of a compiler and a package manager.
func build() []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < 1<<20; i++ {
		fmt.Fprintf(&b, "gcc -O2 -Wall -Iinclude -c src/module_%d.c -o build/module_%d.o\n", i, i)
		fmt.Fprintf(&b, "src/module_%d.c:%d:12: warning: unused variable 'token' [-Wunused-variable]\n", i, i%900)
		fmt.Fprintf(&b, "npm http fetch GET 200 https://registry.npmjs.org/left-pad-%d %dms (cache hit)\n", i, i%77)
		fmt.Fprintf(&b,
			"--- PASS: TestThatSomethingHolds/case_%d (0.%02ds)\n    the quick brown fox jumps over the lazy dog\n", i, i%100)
	}
	return b.Bytes()
}

// BenchmarkStream redacts the output of builds, and input that is meant to be slow, with 50 secrets and all known
// formats.
func BenchmarkStream(b *testing.B) {
	patterns := []Pattern{{"acme", `\bACME-[0-9]{6,12}\b`}, {"ticket", `INT-[A-Z]+-[0-9a-f]{8}`}}
	r := redactor(b, Options{Secrets: fifty()})
	long := func(s string) []byte { return []byte(strings.Repeat(s, 1<<20/len(s))) }
	for _, bench := range []struct {
		name string
		r    *Redactor
		text []byte
	}{
		{"build", r, build()},
		{"build+patterns", redactor(b, Options{Secrets: fifty(), Patterns: patterns}), build()},
		{"build+entropy", redactor(b, Options{Secrets: fifty(), Entropy: true}), build()},
		{"hostile/one letter", r, long("a")},
		{"hostile/a secret", r, long(fifty()[7].Value)},
		{"hostile/almost a secret", r, long(fifty()[7].Value[:20])},
		{"hostile/begin", r, long("-----BEGIN ")},
		{"hostile/private key", r, long("-----BEGIN PRIVATE KEY-----\n")},
		{"hostile/password", r, long("password=")},
		{"hostile/passwords", r, long("password=x\n")},
		{"hostile/url", r, long("://a:")},
		{"hostile/jwt", r, long("eyJhbGciOi")},
		{"hostile/authorization", r, long("authorization: ")},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.SetBytes(int64(len(bench.text)))
			w := bench.r.Writer(io.Discard)
			for b.Loop() {
				if _, err := w.Write(bench.text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkString redacts an argument.
func BenchmarkString(b *testing.B) {
	r := redactor(b, Options{Secrets: fifty()})
	for b.Loop() {
		r.String("--output=build/module_12.o")
	}
}

// BenchmarkNew measures the cost of 50 secrets and all known formats.
func BenchmarkNew(b *testing.B) {
	b.ReportAllocs()
	secrets := fifty()
	for b.Loop() {
		redactor(b, Options{Secrets: secrets})
	}
}
