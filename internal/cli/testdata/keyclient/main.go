// Command keyclient sends a GET request with the bearer token in KEY, and prints the answer: keyclient [-stay] URL. With
// -stay it then waits for the end of its stdin.
package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
)

func main() {
	if err := get(os.Args[len(os.Args)-1]); err != nil {
		fmt.Fprintln(os.Stderr, "keyclient:", err)
		os.Exit(1)
	}
	if os.Args[1] == "-stay" {
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
}

func get(url string) error {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+os.Getenv("KEY"))
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(os.Stdout, res.Body)
	return errors.Join(err, res.Body.Close())
}
