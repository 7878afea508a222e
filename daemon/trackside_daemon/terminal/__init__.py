"""`trackside top`: the dashboard in a terminal. What is drawn is made of lines, by plain functions; `app` shows them."""
