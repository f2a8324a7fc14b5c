package ledger

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// The key of a witness is one file:
//
//	coppice witness key 1
//	name NAME
//	seed HEX           of the Ed25519 key
const witnessTitle = "coppice witness key 1"

// Key returns the verifier key; "" if there is none yet, because nothing was cosigned.
func (w *Witness) Key() (string, error) {
	name, key, err := w.signer()
	if err != nil || key == nil {
		return "", fault.Wrap(err, "read the key of the witness")
	}
	return format.WitnessKey(name, key.Public().(ed25519.PublicKey)), nil
}

// signer reads the name and the key; they are empty if the file does not exist.
func (w *Witness) signer() (name string, key ed25519.PrivateKey, err error) {
	text, err := w.read(fileWitnessKey)
	if err != nil || text == nil {
		return "", nil, err
	}
	f := strings.Split(string(text), "\n")
	if f[0] != witnessTitle {
		return "", nil,
			fault.New(fault.Version, "unknown version %.40q of the witness key file: must be %q", f[0], witnessTitle)
	}
	if len(f) == 4 {
		name = strings.TrimPrefix(f[1], "name ")
		seed, err := hex.DecodeString(strings.TrimPrefix(f[2], "seed "))
		if err == nil && len(seed) == ed25519.SeedSize && string(text) == encodeWitness(name, seed) {
			return name, ed25519.NewKeyFromSeed(seed), nil
		}
	}
	return "", nil, fault.New(fault.Corrupt, "the witness key file is damaged")
}

func encodeWitness(name string, seed []byte) string {
	return fmt.Sprintf("%s\nname %s\nseed %x\n", witnessTitle, name, seed)
}

// ready returns name and key, and creates them and their directories if necessary.
func (w *Witness) ready() (name string, key ed25519.PrivateKey, err error) {
	name, key, err = w.signer()
	if err != nil || key != nil {
		return name, key, err
	}
	for _, dir := range []string{dirWitness, dirSeen} {
		if err := w.mkdir(dir); err != nil {
			return "", nil, err
		}
	}
	b := make([]byte, 8+ed25519.SeedSize)
	if _, err := rand.Read(b); err != nil {
		return "", nil, err
	}
	name, key = "coppice-witness/"+hex.EncodeToString(b[:8]), ed25519.NewKeyFromSeed(b[8:])
	return name, key, w.replace(fileWitnessKey, []byte(encodeWitness(name, b[8:])))
}
