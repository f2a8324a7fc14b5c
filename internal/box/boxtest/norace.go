//go:build linux && (amd64 || arm64) && !race

package boxtest

// raceDetector says that this is a build with -race.
const raceDetector = false
