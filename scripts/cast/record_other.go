//go:build !linux

package main

import "errors"

// record requires Linux.
func record() (*Cast, error) { return nil, errors.New("recording requires Linux") }
