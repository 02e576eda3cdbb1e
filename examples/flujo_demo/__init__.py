"""The licence audit that `flujo demo` runs: real work on the packages installed here, no network and no key needed."""
