package meta

import (
	"encoding/json"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/secretbox"
)

// Values that may contain secrets and must be read back unchanged are encrypted with a key in a file beside the
// database: the texts of policies, stored answers, and those fields of a record that are in private. Cleartext from
// an older version is encrypted when this version opens it.

// The purposes of encrypted values: a value of one purpose is not accepted for another.
const (
	forConfig = "config"
	forPolicy = "policy"
	forAnswer = "answer"
)

// private is the part of a Config that is encrypted. Its fields are those of Config.
type private struct {
	From    string      `json:"from,omitempty"`
	Timed   []TimedRule `json:"timed,omitempty"`
	Env     []string    `json:"env,omitempty"`
	Learnt  []string    `json:"learnt,omitempty"`
	Mark    string      `json:"mark,omitempty"`
	Notices []string    `json:"notices,omitempty"`
	Halted  *Halt       `json:"halted,omitempty"`
	Run     *wire.Run   `json:"run,omitempty"`

	Labels map[string]string `json:"labels,omitempty"`
}

// stored is a Config as it is stored.
type stored struct {
	Config
	Sealed string `json:"sealed,omitempty"` // private
}

// sealConfig returns a config as it is stored.
func sealConfig(key secretbox.Key, c Config) (s stored, err error) {
	p, err := json.Marshal(
		private{From: c.From, Timed: c.Timed, Env: c.Env, Learnt: c.Learnt, Mark: c.Mark, Notices: c.Notices,
			Halted: c.Halted, Run: c.Run, Labels: c.Labels})
	if err != nil {
		return s, err
	}
	c.From, c.Timed, c.Env, c.Learnt, c.Mark, c.Notices, c.Halted, c.Run = "", nil, nil, nil, "", nil, nil, nil
	c.Labels = nil
	s.Config = c
	s.Sealed, err = key.Seal(forConfig, p)
	return s, err
}

// encodeConfig is sealConfig, as text.
func encodeConfig(key secretbox.Key, c Config) (string, error) {
	s, err := sealConfig(key, c)
	if err != nil {
		return "", err
	}
	b, err := json.Marshal(s)
	return string(b), err
}

// openConfig reads a stored config of this version or an older one.
func openConfig(key secretbox.Key, text []byte) (Config, error) {
	var s stored
	if err := json.Unmarshal(text, &s); err != nil || s.Sealed == "" {
		return s.Config, err
	}
	p, err := key.Open(forConfig, s.Sealed)
	if err == nil {
		err = json.Unmarshal(p, &s.Config)
	}
	return s.Config, err
}

// openText reads a text that may be encrypted.
func (d *DB) openText(purpose, text string) (string, error) {
	if !secretbox.Is(text) {
		return text, nil
	}
	b, err := d.key.Open(purpose, text)
	if err != nil {
		return "", fault.New(fault.Corrupt, "cannot decrypt a %s of %s", purpose, d.path).Because(err).WithHint(corruptHint)
	}
	return string(b), nil
}
