//go:build race

package ledger

// raceDetector says that this is a build with -race.
const raceDetector = true
