"""A trained model in use: loading, predicting, exporting."""
