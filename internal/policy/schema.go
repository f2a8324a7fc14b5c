package policy

import (
	"bytes"
	"encoding/json"
	"maps"
)

// SchemaURL is where editors find the schema.
const SchemaURL = "https://raw.githubusercontent.com/coppice-dev/coppice/main/docs/policy.schema.json"

// Schema returns the JSON Schema of a file, draft 2020-12. It is generated from the parser's table: Parse refuses
// everything that the schema refuses, and more.
func Schema() ([]byte, error) {
	s := schema{
		"$schema": "https://json-schema.org/draft/2020-12/schema",
		"$id":     SchemaURL,
		"title":   "A Coppice policy: what a sandbox may read, write, reach and use",
	}
	maps.Copy(s, documentShape(".").schema)
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(s)
	return b.Bytes(), err
}
