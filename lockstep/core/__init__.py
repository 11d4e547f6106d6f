"""The pure words that all services share: identifiers, records, the state machine over the log, errors."""
